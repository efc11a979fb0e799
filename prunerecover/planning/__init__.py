"""Plans of pruning: public functions over the library and the solvers."""
