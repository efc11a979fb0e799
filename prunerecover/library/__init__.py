"""Library of a network: variants of all sites, each fitted and scored."""
