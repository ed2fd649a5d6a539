//! The entry point of the fuzzer; not for other programs.

use crate::format::{
    BLOCK, ExportBlock, ExportHead, ExportPart, ExportReader, ExportWriter, write_checked,
};

/// Reads the bytes in three ways: as an export, as the parts behind a head, and as the body of a block with a correct
/// CRC.
pub fn all(bytes: &[u8]) {
    read(bytes);
    let head = ExportHead { cluster: 1, begun: 2, number: 3 };
    let Ok(begun) = ExportWriter::begin(Vec::new(), &head).and_then(ExportWriter::into_inner)
    else {
        return;
    };
    read(&[&begun, bytes].concat());
    let mut block = [BLOCK.to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
    block.extend_from_slice(bytes);
    let mut file = begun;
    if write_checked(&mut file, &mut block).is_ok() {
        read(&file);
    }
}

fn read(bytes: &[u8]) {
    let Ok(mut reader) = ExportReader::begin(bytes) else { return };
    let mut block = ExportBlock::default();
    while let Ok(ExportPart::Block(cursor)) = reader.next(&mut block) {
        assert_eq!(block.iter().count() as u64, block.pairs(), "it was checked");
        assert_eq!(cursor.to_string().parse(), Ok(cursor), "it was understood");
        assert!(reader.at() <= bytes.len() as u64, "no further than what came");
    }
}
