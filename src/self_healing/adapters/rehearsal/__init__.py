"""The dry run: a few real steps beforehand, without a trace; and `heal check` on a trainer that is built."""
