"""Facts in: where records come from, in an order that can be read again."""
