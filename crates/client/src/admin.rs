//! The calls of a client that concern the cluster as a whole, not single pairs.

use fusee_control::master::{MasterReply, MasterRequest, Status};
use fusee_control::node::{NodeReply, NodeRequest, Usage};
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use crate::client::Client;
use crate::demotion::{DemotionOrder, DemotionOutcome};
use crate::error::{ConnectError, WriteError};
use crate::session::Session;
use crate::survey::{self, FoundPair, MemorySurvey, SurveyError};

/// The operator's calls of a client ([`Client::admin`]): the state of the cluster, the use of its memory, and demotion.
/// All of them block the calling thread.
///
/// ```no_run
/// use fusee_client::Client;
///
/// let client = Client::connect("127.0.0.1:7400")?;
/// println!("{} sessions are open", client.admin().status()?.open_sessions);
/// # Ok::<(), fusee_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Admin<'c> {
    client: &'c Client,
}

impl<'c> Admin<'c> {
    pub(crate) fn new(client: &'c Client) -> Admin<'c> {
        Admin { client }
    }

    /// Asks the master for the status of the cluster.
    pub fn status(&self) -> Result<Status, ConnectError> {
        self.client.check_origin()?;
        let context = self.client.context();
        let master = context.master.clone();
        let asking = async move { master.call(MasterRequest::Status).await };
        match context.wait(asking)? {
            MasterReply::Status(status) => Ok(*status),
            MasterReply::Refused { reason } => Err(ConnectError::Refused(reason)),
            _ => Err(ConnectError::Protocol("another answer than to Status")),
        }
    }

    /// Asks each memory node for the usage of its pool.
    pub fn usage(&self) -> Vec<(MnId, Result<Usage, String>)> {
        let view = self.client.view();
        if let Err(error) = self.client.check_origin() {
            let forked = |member: &Member| (member.node, Err(error.to_string()));
            return view.members.iter().map(forked).collect();
        }
        let context = self.client.context();
        let nodes = context.node_clients(&view);
        let ask = |member: &Member| {
            let Some(node) = nodes.get(&member.node).cloned() else {
                return Err("not in the view".into());
            };
            match context.wait(async move { node.call(NodeRequest::Usage).await }) {
                Ok(NodeReply::Usage(usage)) => Ok(usage),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        view.members.iter().map(|m| (m.node, ask(m))).collect()
    }

    /// Returns the rules that determine the redundancy of a new value, unless the write names one: the client's own
    /// rules if it has any, else the cluster's.
    pub fn redundancy_rules(&self) -> Result<RedundancyRules, ConnectError> {
        self.client.with_session(|session| *session.redundancy_rules())
    }

    /// Finds all pairs for whose redundancy `counts` returns true, as the index shows them. The pairs that were written
    /// longest ago come first, approximately: a pair is considered as old as the session that owns the block of its
    /// object. Takes 40 bytes of memory per pair.
    pub fn find_pairs(
        &self,
        counts: impl Fn(Redundancy) -> bool,
    ) -> Result<Vec<FoundPair>, SurveyError> {
        let find = |session: &Session| session.block_on(survey::pairs::pairs(session, counts));
        self.client.with_session(find)?
    }

    /// Makes pairs of [`Admin::find_pairs`] erasure-coded, concurrently. Pairs that were written after they were found
    /// stay as they are. Returns one outcome per pair, in the order of the pairs. Readers find each value at every
    /// moment.
    pub fn demote(&self, pairs: &[FoundPair], order: &DemotionOrder) -> Vec<DemotionOutcome> {
        let demote = async |session: &Session| {
            let all = pairs.iter().map(|pair| session.demote(pair, order));
            Ok::<_, WriteError>(futures_util::future::join_all(all).await)
        };
        let failed = |error: WriteError| DemotionOutcome::Failed(error);
        match self.client.run(demote) {
            Ok(all) => all.into_iter().map(|went| went.unwrap_or_else(failed)).collect(),
            Err(error) => pairs.iter().map(|_| failed(error.clone())).collect(),
        }
    }

    /// Surveys the use of memory: by node, by size of objects, by owner, and how much waits to be reused. Reads the
    /// index, and 1/512 of the memory that has owners. The survey is not a snapshot, because sessions write while it is
    /// made (see [`MemorySurvey`]).
    pub fn survey_memory(&self) -> Result<MemorySurvey, SurveyError> {
        self.client.check_origin()?;
        let context = self.client.context();
        // The master is asked for orphaned blocks before the block tables are read, and for open sessions afterwards,
        // so that every owner in the tables is known.
        let orphans = survey::owners(context)?.orphans;
        let read = |session: &Session| session.block_on(survey::read_all(session, &orphans));
        let found = self.client.with_session(read)??;
        let count = |session: &Session| session.block_on(survey::pairs::by_redundancy(session));
        let redundancies = self.client.with_session(count)??;
        let survey = survey::survey(found, &survey::owners(context)?, &self.usage());
        Ok(MemorySurvey { redundancies, ..survey })
    }
}
