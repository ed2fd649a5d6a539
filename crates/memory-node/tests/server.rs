//! Tests of a running memory node: the settings that it refuses, and its behaviour without a master.

use std::time::Duration;

use fusee_control::master::MasterRequest;
use fusee_control::node::{AcceptedOrders, BlockId, Extent, NodeReply, NodeRequest};
use fusee_control::rpc::{MasterClient, RpcError, Runtime, bind};
use fusee_core::data::Redundancy;
use fusee_core::layout::{BLOCK_HEADER_BYTES, PoolHeader, TableEntry, first_extent};
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_fabric::FabricKind;
use fusee_fabric::pool::VerbOrder;
use fusee_memory_node::{MemoryNode, MemoryNodeConfig, NodeStartError};

fn config() -> MemoryNodeConfig {
    // The port was free a moment ago, so no process listens there.
    let master = bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    MemoryNodeConfig { master, shm_dir: None, pool_bytes: 1 << 20, ..MemoryNodeConfig::default() }
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let pool = MemoryNode::start(MemoryNodeConfig { pool_bytes: u64::MAX, ..config() });
    assert!(matches!(pool, Err(NodeStartError::Pool { bytes: u64::MAX, .. })), "{pool:?}");
    let pool = MemoryNode::start(MemoryNodeConfig { pool_bytes: 0, ..config() });
    assert!(matches!(pool, Err(NodeStartError::Pool { bytes: 0, .. })), "{pool:?}");
    let listen = MemoryNode::start(MemoryNodeConfig { listen: "nonsense".into(), ..config() });
    assert!(matches!(listen, Err(NodeStartError::Control(_))), "{listen:?}");
    let tcp = MemoryNode::start(MemoryNodeConfig { tcp: Some("nonsense".into()), ..config() });
    assert!(matches!(tcp, Err(NodeStartError::Address { .. })), "{tcp:?}");
    let everywhere = MemoryNode::start(MemoryNodeConfig { listen: "0.0.0.0:0".into(), ..config() });
    let Err(error @ NodeStartError::Advertise { .. }) = everywhere else {
        panic!("{everywhere:?}")
    };
    assert!(error.to_string().contains("--advertise"));
}

#[test]
fn a_node_without_a_master_answers_and_stops() {
    let node = MemoryNode::start(config()).unwrap();
    let client = node.client();
    let described = client.call_blocking(NodeRequest::Describe);
    assert_eq!(described, Ok(NodeReply::Description(node.description().clone())));
    assert!(node.description().tcp.is_some() && node.description().shm.is_none());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(node.name(), None);
    let addr = node.control().to_owned();
    node.stop();
    assert_eq!(client.call_blocking(NodeRequest::Describe), Err(RpcError::Closed { addr }));
}

#[test]
fn a_node_is_no_master() {
    let node = MemoryNode::start(config()).unwrap();
    let runtime = Runtime::start("test").unwrap();
    let wrong = MasterClient::new(&runtime, node.control()).call_blocking(MasterRequest::Status);
    assert!(matches!(wrong, Err(RpcError::WrongService { .. })), "{wrong:?}");
}

#[test]
fn an_emptied_extent_is_zero_again_and_the_table_is_in_the_pool() {
    let runtime = Runtime::start("test").unwrap();
    let node = MemoryNode::start_local(&runtime, "node", 1 << 20, false, FabricKind::Shm).unwrap();
    let ask = |request| node.client().call_blocking(request).unwrap();
    let reserve = |attempt| NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: ClusterId::from_word(1).unwrap(),
        attempt,
        view: 0,
        extent: Extent::Region { region: 0, primary: true },
        bytes: 64 << 10,
        block_bytes: 4096,
    };
    assert_eq!(
        ask(NodeRequest::Format { cluster: ClusterId::from_word(1).unwrap(), attempt: 1 }),
        NodeReply::Done
    );
    let pool = node.fabrics().pool();
    let header = || {
        let mut bytes = [0; PoolHeader::BYTES];
        pool.read(&mut VerbOrder::default(), 0, &mut bytes).unwrap();
        PoolHeader::decode(&bytes).unwrap()
    };
    assert_eq!(header(), PoolHeader { cluster: ClusterId::from_word(1), view: 0 });
    let offset = first_extent(1 << 20);
    assert_eq!(ask(reserve(1)), NodeReply::Reserved { offset });
    // The WRITE stands for a late WRITE of a session of an older cluster.
    pool.write_u64(offset + (36 << 10), 7);
    assert_eq!(
        ask(NodeRequest::Format { cluster: ClusterId::from_word(1).unwrap(), attempt: 2 }),
        NodeReply::Done
    );
    assert_eq!(pool.read_u32(offset + (36 << 10)), 0);

    assert_eq!(ask(reserve(2)), NodeReply::Reserved { offset });
    let client = ClientId(3);
    let entry = |block: BlockId| {
        let mut bytes = [0; 8];
        let at = offset + 8 * u64::from(block.frame);
        pool.read(&mut VerbOrder::default(), at, &mut bytes).unwrap();
        TableEntry::decode(u64::from_le_bytes(bytes))
    };
    let NodeReply::Allocated { block, base } = ask(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client,
        orders: AcceptedOrders { least: 0, most: 0, mixed: true },
        frozen: vec![],
        spare_of: vec![],
    }) else {
        panic!("a fresh region has free blocks");
    };
    assert_eq!((block.order, base), (0, Some(0)));
    assert_eq!(entry(block), Some(TableEntry { owner: client, order: 0, base }));
    // The client writes a block header and an object.
    let start = offset + 4096 + 4096 * u64::from(block.frame);
    pool.write_u64(start, 9);
    pool.write_u64(start + BLOCK_HEADER_BYTES, 9);
    assert_eq!(ask(NodeRequest::Fence { clients: vec![client] }), NodeReply::Done);
    let free = NodeRequest::SetOwner {
        block,
        from: client,
        to: ClientId::NOBODY,
        base: Some(3),
        unless_fenced: false,
        once: false,
    };
    assert_eq!(ask(free), NodeReply::Done);
    let free = TableEntry { owner: ClientId::NOBODY, order: 0, base: Some(3) };
    assert_eq!(entry(block), Some(free));
    assert_eq!((pool.read_u32(start), pool.read_u32(start + BLOCK_HEADER_BYTES)), (0, 9));
    let NodeReply::Usage(usage) = ask(NodeRequest::Usage) else { panic!("no usage") };
    assert_eq!(usage.pool_bytes, 1 << 20, "the header is not lent");
    assert_eq!(pool.bytes(), offset + (1 << 20));
    assert_eq!((usage.led_bytes, usage.led_bytes_owned), (15 * 4096, 0));
}
