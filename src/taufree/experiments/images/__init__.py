"""Images: SimCLR on Imagenette, CIFAR-10 and folders, and anomaly detection by MSC."""
