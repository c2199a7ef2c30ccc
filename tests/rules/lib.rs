//! Nothing: the rules are tests.
