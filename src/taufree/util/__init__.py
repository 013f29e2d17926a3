"""What every part of the library may use: optional imports, files, the machine, an HTML page."""
