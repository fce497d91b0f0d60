"""Reading and writing: the only part that touches the network and the disk."""
