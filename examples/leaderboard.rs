//! A leaderboard: the store has one pair per player, with the player's score, and a scan of all pairs finds the best
//! ten.
//!
//! `cargo run -p fusee-client --example leaderboard`

mod support;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;

use fusee_client::{BlockingClient, ScanCursor, ScanError};

const PREFIX: &str = "score/";
const PLAYERS: u32 = 5000;
const BEST: usize = 10;

/// A line of the board. Lines are ordered by their scores.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BoardLine {
    score: u32,
    player: String,
}

/// Returns the players with the best scores, best first.
///
/// A player whose pair exists during the whole scan is seen exactly once, with the score of some moment of the scan.
/// Different scores may be from different moments.
fn best(store: &BlockingClient) -> Result<Vec<BoardLine>, ScanError> {
    let mut best = BinaryHeap::new();
    let mut cursor = ScanCursor::start();
    while !cursor.is_done() {
        // One call shows a piece of the scan. Nothing is locked between two calls.
        store.scan(&mut cursor, |pair| {
            let Some(player) = pair.key.strip_prefix(PREFIX.as_bytes()) else { return };
            let score = pair.value.try_into().map_or(0, u32::from_le_bytes);
            let player = String::from_utf8_lossy(player).into_owned();
            best.push(Reverse(BoardLine { score, player }));
            if best.len() > BEST {
                best.pop();
            }
        })?;
    }
    Ok(best.into_sorted_vec().into_iter().map(|Reverse(line)| line).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    std::thread::scope(|scope| {
        let play = |first: u32| {
            let store = store.clone();
            scope.spawn(move || {
                (first..PLAYERS).step_by(4).try_for_each(|player| {
                    // Scores in any order that looks random.
                    let score = player.wrapping_mul(2_654_435_761) >> 8;
                    let key = format!("{PREFIX}player {player}");
                    store.put(key.as_bytes(), &score.to_le_bytes())
                })
            })
        };
        let players: Vec<_> = (0..4).map(play).collect();
        players.into_iter().try_for_each(|player| player.join().expect("no panic"))
    })?;
    let board = best(&store)?;
    for line in &board {
        println!("{:>10}  {}", line.score, line.player);
    }
    assert!(board.len() == BEST && board.is_sorted_by(|a, b| a.score >= b.score));
    Ok(())
}
