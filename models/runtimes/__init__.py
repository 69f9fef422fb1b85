"""One file per runtime: loads a variant and runs it, for proofs and for serving."""
