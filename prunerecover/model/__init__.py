"""Networks: paths, copies, calls, hashes, and the small modules for surgery to insert."""
