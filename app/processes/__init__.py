"""One process or several behind one port: connections, signals, restarts, shared metrics."""
