"""One budget over depth and width: splits of it are tried, and the one that changes the output least is planned."""
