//! Parts that the tests share: [`fusee_testing`], and clients that only servers meet.
#![allow(dead_code, unused_imports)] // Every test program uses a part.

pub mod http;
pub mod nic;

pub use fusee_testing::*;
