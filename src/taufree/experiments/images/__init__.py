"""Images: SimCLR on Imagenette, CIFAR-10 and folders, and anomaly detection by MSC."""

RECIPES = {"imagenette": "imagenette", "cifar10": "cifar10", "images": "folder", "msc": "msc"}
