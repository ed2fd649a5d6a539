// Promise API-14

use std::sync::atomic::Ordering;
use std::thread;

use fusee_client::{BlockingClient, Client, EmbeddedOptions};
use serde_json::Map;

use super::*;

fn invitation(drivers: usize) -> RendezvousOptions<'static> {
    let timeout = Duration::from_secs(60);
    RendezvousOptions { name: "test", drivers, settings: Map::new(), timeout }
}

fn join(client: &BlockingClient, drivers: usize) -> Rendezvous {
    Rendezvous::join(client, &invitation(drivers), Arc::default()).unwrap()
}

fn nothing_is_left(client: &BlockingClient, id: u64) {
    let keys = ["", "/0", "/1", "/1/results"].map(|end| match end {
        "" => "fusee-bench/test".to_owned(),
        end => format!("fusee-bench/test/{id:016x}{end}"),
    });
    for key in keys {
        assert_eq!(client.get(key.as_bytes()).unwrap(), None, "{key}");
    }
}

/// Steps begin together, results of many pieces arrive complete, and each driver learns how the meeting has ended.
#[test]
fn drivers_meet_step_hand_over_and_part() {
    let client = Client::embedded(EmbeddedOptions::default()).unwrap().blocking();
    let results: Vec<u8> = (0..3_500_000u32).map(|i| (i / 7) as u8).collect();
    let mut first = join(&client, 2);
    assert_eq!(first.number(), 0);
    let id = first.book.id();
    let is_ready = AtomicBool::new(false);
    let other = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut meeting = join(&client, 2);
            assert_eq!(meeting.number(), 1);
            thread::sleep(Duration::from_millis(300));
            is_ready.store(true, Ordering::Relaxed);
            for _ in 0..2 {
                meeting.begin();
                let now = crate::clock::monotonic_ns();
                meeting.phase_ended(now, now + 1_000);
            }
            meeting.send_results(&results).unwrap();
            let times = meeting.times().to_vec();
            (meeting.leave(|| unreachable!("the first driver lives")).unwrap(), times)
        });
        first.wait_for_all(Duration::from_secs(60)).unwrap();
        for _ in 0..2 {
            first.begin();
            assert!(is_ready.load(Ordering::Relaxed), "it began before the other was ready");
            let now = crate::clock::monotonic_ns();
            first.phase_ended(now, now + 1_000);
        }
        assert!(first.receive_results(1).unwrap() == results);
        first.close(RendezvousEnd::Done(Some("why".into())), || Ok(())).unwrap();
        other.join().unwrap()
    });
    assert_eq!(other.0, RendezvousEnd::Done(Some("why".into())));
    assert!(other.1.iter().all(|(late, end)| *late > 0 && *end == late + 1_000), "{:?}", other.1);
    nothing_is_left(&client, id);
}

/// If the first driver vanishes without ending the meeting, the other driver notices it and removes the meeting's keys.
#[test]
fn who_is_left_alone_tidies_up() {
    let client = Client::embedded(EmbeddedOptions::default()).unwrap().blocking();
    let first = join(&client, 2);
    let id = first.book.id();
    let ended = Arc::new(AtomicBool::new(false));
    let mut meeting = Rendezvous::join(&client, &invitation(2), ended.clone()).unwrap();
    drop(first);
    let begun = Instant::now();
    meeting.begin();
    assert!(ended.load(Ordering::Relaxed) && begun.elapsed() > SILENCE / 2);
    let why = meeting.check_active().unwrap_err().to_string();
    assert!(
        why.starts_with("driver 0 (") && why.ends_with("not been heard for 5 s: it is dead"),
        "{why}"
    );
    let mut is_clean = false;
    let end = meeting.leave(|| {
        is_clean = true;
        Ok(())
    });
    assert_eq!((end.unwrap(), is_clean), (RendezvousEnd::Failed(why), true));
    nothing_is_left(&client, id);
}
