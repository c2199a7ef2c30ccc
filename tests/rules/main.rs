//! Rules for the source text and its documents. Neither program is linked, so they run seconds after an edit.

mod architecture;
mod docs;
mod format_page;
mod tidy;
mod tree;
