"""Networks as they are: paths, copies, calls, hashes, and the small modules that surgery leaves in them."""
