//! Stand-ins for telemetry in a build without the feature `telemetry`: empty types and functions.

use fusee_core::Error;
use fusee_core::stats::OpKind;

#[derive(Debug, Default)]
pub struct SessionLatencies;

pub struct OperationSpan;

impl OperationSpan {
    #[inline(always)]
    pub fn now(_: OpKind) -> OperationSpan {
        OperationSpan
    }

    #[inline(always)]
    pub fn ends<T>(self, _: &SessionLatencies, _: &Result<T, Error>) {}

    #[inline(always)]
    pub fn ends_with(self, _: &[Result<(), Error>]) {}
}
