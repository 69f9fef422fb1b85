"""Where rows come from: one file for each kind of input."""
