//! Answers that are reused for a short time.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// Age at which an answer is replaced.
const FRESH: Duration = Duration::from_millis(900);

/// The last answer, and the time at which it came.
#[derive(Debug)]
pub struct RecentAnswer<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for RecentAnswer<T> {
    fn default() -> RecentAnswer<T> {
        RecentAnswer(Mutex::default())
    }
}

impl<T: Clone> RecentAnswer<T> {
    /// Returns the last answer if it is recent, and otherwise the result of `ask`. Callers that come while `ask` runs
    /// for another caller wait for that result.
    pub async fn get_or_ask(&self, ask: impl Future<Output = T>) -> T {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = ask.await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_asked_once_in_a_while_whoever_comes() {
        let recent = RecentAnswer::default();
        let asked = std::cell::Cell::new(0);
        let ask = || {
            recent.get_or_ask(async {
                asked.set(asked.get() + 1);
                tokio::task::yield_now().await;
                asked.get()
            })
        };
        assert_eq!(futures_util::future::join3(ask(), ask(), ask()).await, (1, 1, 1));
        tokio::time::sleep(FRESH).await;
        assert_eq!(ask().await, 2);
    }
}
