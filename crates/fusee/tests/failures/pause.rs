//! `SIGSTOP` for longer than a lease, then `SIGCONT`.
