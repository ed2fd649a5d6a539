//! What the operations of `fusee-core` get from a real session: waiting, and blocks.
//!
//! A loser waits for a winner that is about to finish, mostly within microseconds, but the
//! winner's thread may have been preempted. So the wait goes from spinning over yielding the
//! processor to sleeping, at most a millisecond at a time, and ends when the sleeps add up to the
//! client's `op_timeout`.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use fusee_core::error::{Error, Outcome};
use fusee_core::host::{BlockGrant, GiveUp, Host};
use fusee_core::layout::SizeClass;
use futures_util::future::{Either, select};

use super::Environment;
use super::blocks::BlockSource;

/// Attempts that spin, on shared memory.
const SPINS: u32 = 16;
/// Attempts, after those, that yield.
const YIELDS: u32 = 48;
/// The first sleep; each one is a quarter longer, up to the longest.
const FIRST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A session's surroundings.
pub struct SessionHost<E> {
    env: Rc<E>,
    blocks: BlockSource<E>,
    /// Whether a phase is so short that spinning pays.
    spins: bool,
    /// Attempts after which an operation gives up.
    max_attempts: u32,
    op_timeout: Duration,
    random: Cell<u64>,
}

impl<E: Environment> SessionHost<E> {
    pub(super) fn new(
        env: Rc<E>,
        blocks: BlockSource<E>,
        spins: bool,
        op_timeout: Duration,
    ) -> SessionHost<E> {
        let sleeps = op_timeout.as_micros() / LONGEST_SLEEP.as_micros();
        let random =
            Cell::new(u64::from(blocks.client().0).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        SessionHost {
            env,
            blocks,
            spins,
            max_attempts: u32::try_from(sleeps).unwrap_or(u32::MAX / 2) + SPINS + YIELDS,
            op_timeout,
            random,
        }
    }

    pub(super) fn blocks(&self) -> &BlockSource<E> {
        &self.blocks
    }

    /// A pseudo-random number (xorshift64); jitter needs no better.
    fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }
}

impl<E: Environment> Host for SessionHost<E> {
    async fn pause(&self, attempt: u32) -> Result<(), GiveUp> {
        if attempt >= self.max_attempts {
            return Err(GiveUp);
        }
        if self.spins && attempt < SPINS {
            self.env.spin(self.random() % (8 << attempt.min(6)));
        } else if attempt < SPINS + YIELDS {
            self.env.yield_now().await;
        } else {
            let growth = 1.25f64.powi((attempt - SPINS - YIELDS).min(100) as i32);
            let longest = FIRST_SLEEP.mul_f64(growth).min(LONGEST_SLEEP);
            // Between half of it and one and a half: clients in conflict drift apart.
            let jitter = 0.5 + self.random() as f64 / u64::MAX as f64;
            self.env.sleep(longest.mul_f64(jitter)).await;
        }
        Ok(())
    }

    async fn alloc_block(&self, class: SizeClass) -> Result<BlockGrant, Error> {
        // On the heap: it is rare, and the futures of operations stay small.
        let granting = Box::pin(self.blocks.grant(class));
        match select(granting, pin!(self.env.sleep(self.op_timeout))).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::GaveUp {
                waiting_for: "a memory node to allocate a block",
                outcome: Outcome::NotApplied,
            }),
        }
    }
}
