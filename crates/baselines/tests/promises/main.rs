//! What each system promises, in random histories over an adversarial network.

mod one_object;
mod support;
