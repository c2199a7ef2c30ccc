//! Rules for the source text and its documents. Neither program is linked, so they run seconds after an edit.

mod architecture;
mod circles;
mod docs;
mod refusals;
mod reports;
mod tidy;
mod tree;
