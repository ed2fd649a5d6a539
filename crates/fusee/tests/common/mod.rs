//! Parts that the tests share: [`fusee_testing`], and clients of two protocols that only servers of these tests need.
#![allow(dead_code, unused_imports)] // Every test program uses only some of the parts.

pub mod http;
pub mod nic;

pub use fusee_testing::*;
