"""The parts of `redblue experiment training`: each module lists the points of a part, and runs one of them."""
