"""The library: variants of all sites of a network, each fitted and scored."""
