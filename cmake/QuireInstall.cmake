# Install rules: library, header, find_package(quire) and pkg-config.
