"""From a model in models/definitions to a verified, self-describing artifact."""
