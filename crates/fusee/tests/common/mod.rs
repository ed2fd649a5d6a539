//! Parts that the tests share: [`fusee_testing`], and minimal clients of HTTP and of the software NIC, which only these
//! tests need.
#![allow(dead_code, unused_imports)] // Every test program uses only some of the parts.

pub mod http;
pub mod nic;

pub use fusee_testing::*;
