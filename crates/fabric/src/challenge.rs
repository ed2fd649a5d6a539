//! The challenge: at the start of a data connection, both ends prove that they know the memory node's key.
//!
//! ```text
//! call, 48 bytes       | magic 8 | node 8 | nonce 32 |                    client → node
//! answer, 76 bytes     | magic 8 | refusal 4 | nonce 32 | proof 32 |      node → client
//! proof, 32 bytes      before the hello                                   client → node
//! ```
//!
//! Numbers are little-endian. The magic is that of the fabric. A call names the node by a one-way function of the
//! node's key ([`NodeKey::name`]). From the name a node sees that a call is for another node, and refuses it; a switch
//! finds the right node. Knowing the name gives no access. In a refusal, nonce and proof are zeros, and the node closes
//! the connection.
//!
//! The node's proof covers the call; the client's proof covers the call and the client's hello. Both proofs cover
//! the two nonces and the fabric. Therefore a process that accepts calls in a node's place, at a path or an address
//! that the node has left, learns only a name and a nonce. A recorded connection cannot be replayed, neither over
//! the same fabric nor over another one.
//!
//! Safety: a client sends nothing but the call before it has verified the node's proof, and a node hands out
//! nothing before it has verified the client's proof. Neither proof can be made without the key, because a proof is
//! a keyed hash over a nonce that the other end has picked for this connection.

// Promise SEC-17

use std::io;

use fusee_auth::{AuthTranscript, NodeKey, Nonce, Proof, Side};
use fusee_core::version::ConnectionEnd;
use fusee_tls::{SPEAKS_TLS, WANTS_TLS};

use crate::bytes::{u32_at, u64_at};
use crate::error::AttachCause;
use crate::version::{Protocol, ProtocolMismatch};

pub(crate) const CALL_BYTES: usize = 48;
pub(crate) const ANSWER_BYTES: usize = 76;
pub(crate) const PROOF_BYTES: usize = fusee_auth::BYTES;

/// Reasons for which a node refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChallengeRefusal {
    /// The client's call names another node than the one that it has reached.
    WrongNode = 1,
    /// The client has another version. The client notices the difference by the magic, before it reads the refusal.
    OtherVersion = 2,
    /// The node accepts TLS only.
    WantsTls = 3,
    /// The node does not support TLS.
    SpeaksNoTls = 4,
    /// The node has no permission to kill the client's process.
    NotFenceable = 5,
}

impl ChallengeRefusal {
    const ALL: [ChallengeRefusal; 5] = [
        ChallengeRefusal::WrongNode,
        ChallengeRefusal::OtherVersion,
        ChallengeRefusal::WantsTls,
        ChallengeRefusal::SpeaksNoTls,
        ChallengeRefusal::NotFenceable,
    ];

    /// Returns the bytes of the answer that refuses a call for this reason.
    pub(crate) fn encode(self, protocol: &Protocol) -> [u8; ANSWER_BYTES] {
        encode_answer(protocol, self as u32, &[0; PROOF_BYTES], &[0; PROOF_BYTES])
    }
}

impl From<ChallengeRefusal> for AttachCause {
    fn from(refusal: ChallengeRefusal) -> AttachCause {
        match refusal {
            ChallengeRefusal::WrongNode => AttachCause::WrongIdentity,
            ChallengeRefusal::OtherVersion => AttachCause::NotAMemoryNode,
            ChallengeRefusal::WantsTls => AttachCause::Tls(WANTS_TLS.into()),
            ChallengeRefusal::SpeaksNoTls => AttachCause::Tls(SPEAKS_TLS.into()),
            ChallengeRefusal::NotFenceable => AttachCause::NotFenceable,
        }
    }
}

fn encode_answer(
    protocol: &Protocol,
    refusal: u32,
    nonce: &Nonce,
    proof: &Proof,
) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..8].copy_from_slice(&protocol.magic());
    bytes[8..12].copy_from_slice(&refusal.to_le_bytes());
    bytes[12..44].copy_from_slice(nonce);
    bytes[44..].copy_from_slice(proof);
    bytes
}

/// Returns the name of the node that a call is addressed to.
pub(crate) fn called_node_name(
    protocol: &Protocol,
    call: &[u8; CALL_BYTES],
) -> Result<u64, ProtocolMismatch> {
    protocol.check(ConnectionEnd::Server, call)?;
    u64_at(call, 8).ok_or(ProtocolMismatch::Stranger)
}

/// The messages that both ends of a challenge have sent so far, and the key that both ends prove to know.
#[derive(Clone, Debug)]
struct ChallengeTranscript {
    key: NodeKey,
    kind: &'static str,
    call: [u8; CALL_BYTES],
    asker: Nonce,
    answerer: Nonce,
}

impl ChallengeTranscript {
    fn of_node(&self) -> Proof {
        self.key.proof(Side::Answerer, &self.proof_input(&self.call))
    }

    /// Makes the proof of a client that sends this hello.
    fn of_client(&self, hello: &[u8]) -> Proof {
        self.key.proof(Side::Asker, &self.proof_input(&[&self.call, hello].concat()))
    }

    fn proof_input<'a>(&'a self, about: &'a [u8]) -> AuthTranscript<'a> {
        AuthTranscript { kind: self.kind, about, asker: &self.asker, answerer: &self.answerer }
    }
}

/// The client's side of a challenge, until the client has the node's proof.
pub(crate) struct ClientChallenge {
    protocol: &'static Protocol,
    challenge: ChallengeTranscript,
}

impl ClientChallenge {
    /// Makes the call, the first message of a challenge, to the node with this key.
    pub(crate) fn new(protocol: &'static Protocol, key: &NodeKey) -> io::Result<ClientChallenge> {
        let asker = fusee_auth::nonce()?;
        let mut call = [0; CALL_BYTES];
        call[..8].copy_from_slice(&protocol.magic());
        call[8..16].copy_from_slice(&key.name().to_le_bytes());
        call[16..].copy_from_slice(&asker);
        let key = key.clone();
        let kind = protocol.name();
        let answerer = [0; PROOF_BYTES];
        Ok(ClientChallenge {
            protocol,
            challenge: ChallengeTranscript { key, kind, call, asker, answerer },
        })
    }

    pub(crate) fn bytes(&self) -> &[u8; CALL_BYTES] {
        &self.challenge.call
    }

    /// Checks the node's answer. If the node's proof is good, returns the client's proof, which covers `hello`.
    pub(crate) fn check_answer(
        mut self,
        answer: &[u8; ANSWER_BYTES],
        hello: &[u8],
    ) -> Result<Proof, AttachCause> {
        self.protocol.check(ConnectionEnd::Client, answer)?;
        let nonce = answer[12..44].first_chunk();
        let proof = answer[44..].first_chunk::<PROOF_BYTES>();
        let (Some(refusal), Some(nonce), Some(proof)) = (u32_at(answer, 8), nonce, proof) else {
            return Err(AttachCause::NotAMemoryNode);
        };
        if refusal != 0 {
            let known = ChallengeRefusal::ALL.into_iter().find(|known| *known as u32 == refusal);
            return Err(known.map_or(AttachCause::NotAMemoryNode, AttachCause::from));
        }
        self.challenge.answerer = *nonce;
        let said = self.challenge.proof_input(&self.challenge.call);
        if !self.challenge.key.proves(Side::Answerer, &said, proof) {
            return Err(AttachCause::Unproved);
        }
        Ok(self.challenge.of_client(hello))
    }
}

/// The node's side of a challenge, until the node has the client's proof.
#[derive(Debug)]
pub(crate) struct NodeChallenge(ChallengeTranscript);

impl NodeChallenge {
    /// Answers a call to the node with this key. Returns the answer, and the state that checks the client's proof
    /// later.
    pub(crate) fn new(
        protocol: &'static Protocol,
        key: &NodeKey,
        call: &[u8; CALL_BYTES],
    ) -> io::Result<([u8; ANSWER_BYTES], NodeChallenge)> {
        let asker = *call.last_chunk().expect("a call is longer than a nonce");
        let key = key.clone();
        let kind = protocol.name();
        let answerer = fusee_auth::nonce()?;
        let challenge = ChallengeTranscript { key, kind, call: *call, asker, answerer };
        let answer = encode_answer(protocol, 0, &answerer, &challenge.of_node());
        Ok((answer, NodeChallenge(challenge)))
    }

    /// Returns whether the proof shows that the sender of this hello has the key.
    pub(crate) fn is_proved(&self, proof: &[u8; PROOF_BYTES], hello: &[u8]) -> bool {
        let about = [&self.0.call, hello].concat();
        self.0.key.proves(Side::Asker, &self.0.proof_input(&about), proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Protocol = Protocol::new("FUSEab", "protocol ab", 7);
    const OTHER: Protocol = Protocol::new("FUSEac", "protocol ac", 7);
    static A: Protocol = ONE;
    static B: Protocol = OTHER;

    fn key(identity: u64) -> NodeKey {
        NodeKey::new(None, identity)
    }

    #[test]
    fn both_ends_prove_the_key_and_no_other_key_will_do() {
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        assert_eq!(called_node_name(&A, call.bytes()), Ok(key(1).name()));
        let (answer, node) = NodeChallenge::new(&A, &key(1), call.bytes()).unwrap();
        let proof = call.check_answer(&answer, b"hello").unwrap();
        assert!(node.is_proved(&proof, b"hello"));
        assert!(!node.is_proved(&proof, b"hallo"), "the hello is part of the proof");
        // A process without the key answers the call.
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        let (answer, _) = NodeChallenge::new(&A, &key(2), call.bytes()).unwrap();
        assert!(matches!(call.check_answer(&answer, b"hello"), Err(AttachCause::Unproved)));
        // A process without the key returns the call's nonce as its own nonce and as its proof.
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        let nonce = call.challenge.asker;
        let mirrored = encode_answer(&A, 0, &nonce, &nonce);
        assert!(matches!(call.check_answer(&mirrored, b"hello"), Err(AttachCause::Unproved)));
    }

    #[test]
    fn a_recorded_connection_proves_nothing_in_another_one() {
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        let recorded = *call.bytes();
        let (answer, node) = NodeChallenge::new(&A, &key(1), &recorded).unwrap();
        let proof = call.check_answer(&answer, b"hello").unwrap();
        assert!(node.is_proved(&proof, b"hello"));
        // Replay to the node: the recorded call, with the proof made for the first answer.
        let (second, node) = NodeChallenge::new(&A, &key(1), &recorded).unwrap();
        assert_ne!(answer, second, "nonces of nodes differ");
        assert!(!node.is_proved(&proof, b"hello"));
        // Replay to a client: the answer to an earlier call.
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        assert_ne!(*call.bytes(), recorded, "nonces of clients differ");
        assert!(matches!(call.check_answer(&answer, b"hello"), Err(AttachCause::Unproved)));
        // An answer made for another fabric, with this fabric's magic.
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        let (mut answer, _) = NodeChallenge::new(&B, &key(1), call.bytes()).unwrap();
        answer[..8].copy_from_slice(&A.magic());
        assert!(matches!(call.check_answer(&answer, b"hello"), Err(AttachCause::Unproved)));
    }

    #[test]
    fn refusals_come_back() {
        for refusal in ChallengeRefusal::ALL {
            let call = ClientChallenge::new(&A, &key(1)).unwrap();
            let cause = call.check_answer(&refusal.encode(&A), b"").unwrap_err();
            assert_eq!(cause.to_string(), AttachCause::from(refusal).to_string());
        }
        let mut unknown = ChallengeRefusal::WrongNode.encode(&A);
        unknown[8] = 77;
        let call = ClientChallenge::new(&A, &key(1)).unwrap();
        assert!(matches!(call.check_answer(&unknown, b""), Err(AttachCause::NotAMemoryNode)));
    }
}
