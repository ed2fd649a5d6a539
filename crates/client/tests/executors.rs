//! Clients inside of other async runtimes: with any executor, with calls that are not awaited, and with threads that
//! have to do other work while a call waits.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::options;
use fusee_client::{BlockingClient, Client, FabricKind, Geometry, WriteError};
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

const MIB: usize = 1 << 20;

/// Number of values of 1 MiB that one task puts. Nearly each of them needs a block from the master or a memory node, so
/// there are more such requests than tokio's budget of 128 allows a task without yielding.
const VALUES: usize = 300;

/// Number of small operations per task.
const OPERATIONS: usize = 2000;

/// The longest time for which a call is allowed to keep a thread from its other tasks: far more than a call takes, and
/// far less than the store waits for memory. Delays that the machine causes to idle threads are not counted.
const MOST_SILENCE: Duration = Duration::from_millis(500);

/// The longest time that a call is allowed to take until it fails because memory is full.
const REFUSAL: Duration = Duration::from_secs(30);

/// Makes a cluster of three nodes with pools of this size, for values of 1 MiB.
fn large(fabric: FabricKind, pool_bytes: u64) -> Client {
    let geometry = Geometry {
        region_bytes: 32 << 20,
        block_bytes: 2 << 20,
        max_value_bytes: MIB as u32,
        ..Geometry::default()
    };
    let options = options(fabric).with_pool_bytes(pool_bytes).with_geometry(geometry);
    Client::embedded(options).unwrap()
}

fn key(n: usize) -> [u8; 8] {
    (n as u64).to_le_bytes()
}

/// Puts values of 1 MiB: first under new keys, then replacing old values.
async fn puts_of_1_mib(client: Client, first: usize) {
    let mut value = vec![7; MIB];
    for i in 0..VALUES {
        value[0] = i as u8;
        let put = client.put(&key(first + i % 40), &value).await;
        assert_eq!(put, Ok(()), "after {i}");
    }
    let last = client.get(&key(first + (VALUES - 1) % 40)).await.unwrap().unwrap();
    assert_eq!((last.len(), last[0]), (MIB, (VALUES - 1) as u8));
}

/// Runs every kind of operation, many times.
async fn small_operations(client: Client, first: usize) {
    for i in 0..OPERATIONS / 8 {
        let key = key(first + i);
        assert_eq!(client.insert(&key, b"1").await, Ok(()));
        assert_eq!(client.insert(&key, b"2").await, Err(WriteError::AlreadyExists));
        assert_eq!(client.update(&key, b"3").await, Ok(()));
        assert_eq!(client.get(&key).await, Ok(Some(b"3".to_vec())));
        assert_eq!(client.put(&key, b"4").await, Ok(()));
        assert_eq!(client.get_many(&[key]).await, Ok(vec![Some(b"4".to_vec())]));
        assert_eq!(client.delete(&key).await, Ok(()));
        assert_eq!(client.get(&key).await, Ok(None));
    }
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// A minimal executor with one thread and a queue, independent of tokio.
struct Small {
    tasks: RefCell<VecDeque<Arc<Task>>>,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    work: Mutex<Option<Work>>,
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Small {
    fn run(works: Vec<Work>) {
        let task = |work| {
            let work = Mutex::new(Some(work));
            let is_woken = AtomicBool::new(true);
            Arc::new(Task { work, is_woken, thread: thread::current() })
        };
        let small = Small { tasks: RefCell::new(works.into_iter().map(task).collect()) };
        while !small.tasks.borrow().is_empty() {
            let due: Vec<_> = small.tasks.borrow().iter().cloned().collect();
            let mut worked = false;
            for task in due.iter().filter(|task| task.is_woken.swap(false, Ordering::Acquire)) {
                worked = true;
                let waker = Waker::from(task.clone());
                let mut work = task.work.lock().unwrap();
                let polled = work.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
                if polled.is_ready() {
                    *work = None;
                }
            }
            small.tasks.borrow_mut().retain(|task| task.work.lock().unwrap().is_some());
            if !worked {
                thread::park();
            }
        }
    }
}

#[test]
fn large_values_are_put_in_tasks_of_every_executor() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = large(fabric, 512 << 20);
        for runtime in [current_thread(), multi_thread()] {
            runtime.block_on(async {
                tokio::spawn(puts_of_1_mib(client.clone(), 0)).await.unwrap();
            });
        }
        Small::run(vec![Box::pin(puts_of_1_mib(client.clone(), 0))]);
    }
}

#[test]
fn thousands_of_operations_run_in_tasks_of_every_executor() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = Client::embedded(options(fabric)).unwrap();
        for runtime in [current_thread(), multi_thread()] {
            runtime.block_on(async {
                let each = |n| tokio::spawn(small_operations(client.clone(), n * OPERATIONS));
                for ended in join_all((0..4).map(each)).await {
                    ended.unwrap();
                }
            });
        }
        let each = |n| -> Work { Box::pin(small_operations(client.clone(), n * OPERATIONS)) };
        Small::run((0..4).map(each).collect());
    }
}

/// A blocking call also works in a task of an async runtime, although it blocks a thread of that runtime.
#[test]
fn blocking_calls_work_in_tasks_and_threads() {
    fn puts(client: &BlockingClient) {
        let value = vec![7; MIB];
        for i in 0..VALUES {
            assert_eq!(client.put(&key(i % 40), &value), Ok(()), "after {i}");
        }
    }
    let client = large(FabricKind::Shm, 512 << 20).blocking();
    for runtime in [current_thread(), multi_thread()] {
        let theirs = client.clone();
        runtime.block_on(async { tokio::spawn(async move { puts(&theirs) }).await.unwrap() });
        // Dropping the runtime ends its threads, and the threads' sessions with them.
        drop(runtime);
    }
    let theirs = client.clone();
    Small::run(vec![Box::pin(async move { puts(&theirs) })]);
    thread::spawn(move || puts(&client)).join().unwrap();
}

/// Runs `work`. Also returns the longest delay of another thread that only sleeps for moments, as a measure of the
/// machine's own delays.
async fn beside_a_sleeper<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let ends = Arc::new(AtomicBool::new(false));
    let sleeper = {
        let ends = Arc::clone(&ends);
        thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let begun = Instant::now();
                thread::sleep(Duration::from_millis(1));
                longest = longest.max(begun.elapsed());
            }
            longest
        })
    };
    let result = work.await;
    ends.store(true, Ordering::Relaxed);
    (result, sleeper.join().unwrap())
}

/// Runs `work`. Also returns the longest time for which `work` kept its thread from other tasks.
async fn silence_during<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let mut work = pin!(work);
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let result = std::future::poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if polled.is_pending() {
            while ticks.poll_tick(context).is_ready() {}
        }
        polled
    });
    (result.await, longest)
}

#[test]
fn a_full_pool_is_told_soon_and_holds_no_executor_up() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = large(fabric, 96 << 20);
        let value = vec![7; MIB];
        let mut begun = Instant::now();
        current_thread().block_on(async {
            let fill = async {
                for i in 0..1000 {
                    begun = Instant::now();
                    if let Err(error) = client.insert(&key(i), &value).await {
                        return error;
                    }
                }
                panic!("the pool is never full");
            };
            let ((error, silence), stall) = beside_a_sleeper(silence_during(fill)).await;
            println!(
                "{fabric}: {error} after {:?}, silent for {silence:?}, a sleeper for {stall:?}",
                begun.elapsed()
            );
            assert_eq!(error, WriteError::OutOfMemory);
            assert!(begun.elapsed() < REFUSAL, "it took {:?}", begun.elapsed());
            let most = MOST_SILENCE + 4 * stall;
            assert!(silence < most, "the thread was held up for {silence:?}, at most {most:?}");
        });
    }
}

/// A blocking call in a task fails in time if the pool is full.
#[test]
fn a_blocking_call_in_a_task_is_told_of_a_full_pool() {
    let client = large(FabricKind::Shm, 96 << 20).blocking();
    let runtime = current_thread();
    runtime.block_on(async {
        let fill = async move {
            let value = vec![7; MIB];
            (0..1000).find_map(|i| client.insert(&key(i), &value).err())
        };
        assert_eq!(tokio::spawn(fill).await.unwrap(), Some(WriteError::OutOfMemory));
    });
}

/// A write whose future is dropped goes on, and delays no later writer, over shared memory as well as over TCP.
#[test]
fn writes_that_nobody_waits_for_are_finished() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = large(fabric, 512 << 20);
        current_thread().block_on(async {
            let value = vec![7; MIB];
            for i in 0..200 {
                let key = key(i % 20);
                let mut write = pin!(client.put(&key, &value));
                // The future is polled once, and then dropped.
                let polled = futures_util::poll!(&mut write);
                assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(()))), "{polled:?}");
            }
        });
        // If a write had stopped half-way, its key would be missing, or its slot could not be written.
        let end = Instant::now() + REFUSAL;
        let client = client.blocking();
        for i in 0..20 {
            while client.get(&key(i)) == Ok(None) {
                assert!(Instant::now() < end, "nobody has written {i}");
            }
            assert_eq!(client.update(&key(i), b"last"), Ok(()));
        }
    }
}
