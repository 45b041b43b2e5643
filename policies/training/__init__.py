"""Training a small pi0 from a scripted expert: collection, flow-matching behaviour cloning, DAgger."""
