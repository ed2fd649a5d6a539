//! Programs can name everything that the library returns: errors down to the last field, and the parts of views and
//! reports. Programs need no other crate of the project for that.

// Promise API-8: A program can name every error and part of the library.

use std::io;

use fusee_client::status::{
    ClientRecovery, MemberState, MemberStatus, Reconfiguration, RecoveryTimes,
};
use fusee_client::view::{
    ChangeStage, Member, PoolPlace, Region, RegionChange, Subtable, ViewChange,
};
use fusee_client::{
    AttachCause, AttachError, Client, ClientId, ClusterId, ConnectError, Damage, Error,
    FabricChoice, FabricKind, FailedWriteOutcome, MnId, RdmaError, ReadError, Role, RpcError,
    ScanCursor, ScanError, SizeClass, SurveyError, UnknownFabric, VerbError, ViewError, WriteError,
};

/// Returns what a program needs to react to a failed operation: the memory node, whether to try again, and whether the
/// write has possibly taken effect.
fn of_operation(error: &WriteError) -> (Option<MnId>, bool, FailedWriteOutcome) {
    match error {
        WriteError::Unreachable { node, error: VerbError::Fenced, outcome } => {
            (Some(*node), false, *outcome)
        }
        WriteError::Unreachable { node, error: _, outcome } => (Some(*node), true, *outcome),
        WriteError::GaveUp { waiting_for: _, outcome } => (None, true, *outcome),
        other => (None, false, other.outcome()),
    }
}

/// Describes why a client could not join.
fn of_joining(error: &ConnectError) -> String {
    match error {
        ConnectError::Master(RpcError::WrongService { addr, expected: Role::Master, found }) => {
            format!("{found} is at {addr}")
        }
        ConnectError::WrongCluster(RpcError::WrongCluster { addr: _, own, found }) => {
            let name = |cluster: &Option<ClusterId>| cluster.map_or(0, |cluster| cluster.word());
            format!("{} instead of {}", name(found), name(own))
        }
        ConnectError::View(ViewError { what }) => (*what).to_owned(),
        ConnectError::Attach(AttachError { node, at, cause }) => match cause {
            AttachCause::Rdma(RdmaError::NoDevice) => "no device".into(),
            AttachCause::Unreachable(error) => format!("{node} at {at}: {:?}", error.kind()),
            _ => at.clone(),
        },
        ConnectError::Io(error) => format!("{:?}", error.kind()),
        _ => String::new(),
    }
}

fn of_survey(error: &SurveyError) -> Option<MnId> {
    match error {
        SurveyError::Unreachable { node, error: VerbError::Unreachable } => Some(*node),
        SurveyError::Connect(error) => panic!("{}", of_joining(error)),
        _ => None,
    }
}

/// A function that makes calls of every family and passes their errors on by `?`.
fn passes_all_on(client: &Client) -> Result<(), Error> {
    let store = client.blocking();
    store.put(b"key", b"value")?;
    store.get(b"key")?;
    store.scan(&mut ScanCursor::start(), |_| ())?;
    client.session()?;
    client.admin().survey_memory()?;
    Ok(())
}

#[test]
fn errors_are_taken_apart() {
    let _: fn(&Client) -> Result<(), Error> = passes_all_on;
    let node = MnId(3);
    let outcome = FailedWriteOutcome::Unknown;
    let lost = |error| WriteError::Unreachable { node, error, outcome };
    assert_eq!(of_operation(&lost(VerbError::Unreachable)), (Some(node), true, outcome));
    assert_eq!(of_operation(&lost(VerbError::Fenced)), (Some(node), false, outcome));
    assert_eq!(of_operation(&WriteError::NotFound), (None, false, FailedWriteOutcome::NotApplied));

    let cluster = ClusterId::from_word(7);
    let stranger = RpcError::WrongCluster { addr: "here".into(), own: cluster, found: None };
    assert_eq!(of_joining(&stranger.into()), "0 instead of 7");
    let cause = AttachCause::Unreachable(io::ErrorKind::TimedOut.into());
    let attach = AttachError { node, at: "there".into(), cause };
    assert_eq!(of_joining(&attach.into()), "mn3 at there: TimedOut");
    let gone = SurveyError::Unreachable { node, error: VerbError::Unreachable };
    assert_eq!(of_survey(&gone), Some(node));

    let all = [
        Error::from(ReadError::GaveUp { waiting_for: "a test" }),
        Error::from(WriteError::GaveUp { waiting_for: "a test", outcome }),
        Error::from(ScanError::GaveUp { waiting_for: "a test" }),
    ];
    assert_eq!(all.each_ref().map(Error::outcome)[1], FailedWriteOutcome::Unknown);
    let texts = all.each_ref().map(Error::to_string);
    assert!(texts.iter().all(|text| text.starts_with("gave up after waiting too long for a test")));
    // Only the error of a write has an outcome, and only its text mentions the outcome.
    assert!(!texts[0].contains("outcome") && !texts[2].contains("outcome"), "{texts:?}");
    assert!(texts[1].contains("(write outcome: unknown)"), "{texts:?}");
    let expelled = WriteError::Expelled { outcome: FailedWriteOutcome::NotApplied };
    assert!(expelled.to_string().contains("(write outcome: not applied)"), "{expelled}");

    let unknown: Result<FabricKind, UnknownFabric> = "pigeon".parse();
    assert_eq!(unknown.unwrap_err().0, "pigeon");
    assert_eq!(FabricChoice::from(FabricKind::Tcp), FabricChoice::Only(FabricKind::Tcp));
}

/// A function with parts of views or reports as parameters has to name their types, so these types must be public.
#[test]
fn parts_of_views_and_reports_are_named() {
    fn named<T>() -> bool {
        !std::any::type_name::<T>().is_empty()
    }
    assert!(named::<(Member, Region, Subtable, PoolPlace)>());
    assert!(named::<(ViewChange, RegionChange, ChangeStage)>());
    assert!(named::<(MemberState, MemberStatus, Reconfiguration, ClientRecovery, RecoveryTimes)>());
    assert!(named::<(ClientId, SizeClass, Damage)>());
}
