"""What RFC 9110 and 9112 demand of a server, on the wire."""
