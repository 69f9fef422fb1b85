"""What servers do with more than they can: goodput, refusals and what the refused are told."""
