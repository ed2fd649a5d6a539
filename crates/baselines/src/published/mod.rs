//! FUSEE as it was published, and its variants.

mod allocator;
mod cache;
mod client;
mod layout;
mod memory;
mod object;
mod parameters;
mod rounds;

pub use allocator::{Allocator, Costs, Request};
pub use client::{Client, Counts};
pub use layout::Layout;
pub use parameters::{Allocation, Parameters, Unfit, Writes};
