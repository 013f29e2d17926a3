"""``python -m taufree``, for where the command ``taufree`` is not on the path."""

from taufree.cli import main

if __name__ == "__main__":
    main()
