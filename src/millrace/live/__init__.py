"""Live queries: a query over a view whose changes are pushed. A pure core; sockets and stores are elsewhere."""
