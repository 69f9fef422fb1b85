"""The second cache: predictions in a Redis or Valkey that several servers share."""
