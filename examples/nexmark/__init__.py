"""Nexmark: events of an auction site, and queries over them."""
