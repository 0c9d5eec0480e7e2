use super::*;

const FREE: PostCost = PostCost {
    fixed: SimDuration::ZERO,
    per_descriptor: SimDuration::ZERO,
};

/// Blocks of 4 tokens and 100 bytes.
fn wanted(cached_blocks: u32, blocks: u32) -> Wanted {
    Wanted {
        cached_blocks,
        blocks,
        block_size: 4,
        block_bytes: 100,
        block_descriptors: 10,
    }
}

fn due(bytes: u64, even_until: Option<u64>) -> Due {
    Due {
        bytes,
        even_until: even_until.map(SimTime),
        again: None,
    }
}

fn at(ns: u64) -> SimTime {
    SimTime(ns)
}

/// 10 tokens, 3 blocks, of 5 layers in steps of 6 and 4 tokens: one block, then two.
#[test]
fn a_step_tells_its_first_layers_and_its_last_one() {
    let mut prompt = LayerWise::new(10, 5, PushFrom::EveryChunk, FREE);
    assert_eq!(prompt.hears(wanted(0, 3), at(0)), at(0));
    assert_eq!(prompt.total_bytes(), Some(300));
    assert_eq!(prompt.computes(0, 6, at(0), at(50)), [at(10), at(50)]);
    assert_eq!(prompt.due(at(9)), due(0, None));
    assert_eq!(prompt.due(at(10)), due(80, Some(50)));
    assert_eq!(
        prompt.due(at(20)),
        due(0, Some(50)),
        "told before, at the same pace"
    );
    assert_eq!(prompt.due(at(50)), due(20, None));
    prompt.computes(6, 4, at(50), at(100));
    assert_eq!(prompt.due(at(60)), due(160, Some(100)));
    assert_eq!(prompt.due(at(100)), due(40, None));
    assert_eq!(
        [0, 99, 100, 299, 300].map(|moved| prompt.valid_bytes(moved)),
        [0, 0, 100, 100, 300],
        "whole chunks"
    );
}

/// A block that the decode group has is not written, nor is one before its last token is computed.
#[test]
fn only_whole_blocks_that_are_wanted_count() {
    let mut prompt = LayerWise::new(11, 1, PushFrom::EveryChunk, FREE);
    prompt.hears(wanted(1, 2), at(0));
    for (computed, bytes) in [(0, 0), (4, 100), (8, 100)] {
        let end = u64::from(computed) + 4;
        prompt.computes(computed, 4.min(11 - computed), at(end - 4), at(end));
        assert_eq!(prompt.due(at(end)), due(bytes, None), "{computed}");
    }
}

/// What the step found in the prefill group's own cache is there with its first layer.
#[test]
fn cached_tokens_are_due_with_the_first_layer() {
    let mut prompt = LayerWise::new(8, 2, PushFrom::EveryChunk, FREE);
    prompt.hears(wanted(0, 2), at(0));
    prompt.computes(4, 4, at(0), at(10));
    assert_eq!(prompt.due(at(5)), due(150, Some(10)));
    assert_eq!(prompt.due(at(10)), due(50, None));
}

#[test]
fn the_last_chunk_writes_all_layers_of_all_blocks() {
    let mut prompt = LayerWise::new(8, 4, PushFrom::LastChunk, FREE);
    prompt.hears(wanted(0, 2), at(0));
    prompt.computes(0, 4, at(0), at(10));
    assert_eq!(prompt.due(at(10)), due(0, None));
    prompt.computes(4, 4, at(10), at(50));
    assert_eq!(prompt.due(at(20)), due(150, Some(50)));
    assert_eq!(prompt.due(at(50)), due(50, None));
}

/// 10 ns a write and 1 ns a descriptor: the last of 5 layers has 2 of a block's 10; a whole block has 10.
#[test]
fn the_last_layer_and_what_had_to_wait_are_posted() {
    let post = PostCost {
        fixed: SimDuration(10),
        per_descriptor: SimDuration(1),
    };
    let mut prompt = LayerWise::new(8, 5, PushFrom::EveryChunk, post);
    prompt.computes(0, 4, at(0), at(50));
    assert_eq!(prompt.due(at(10)), due(0, None), "nobody knows where to");
    assert_eq!(prompt.hears(wanted(0, 2), at(70)), at(90));
    assert_eq!(prompt.due(at(80)), due(0, None));
    assert_eq!(prompt.due(at(90)), due(100, None));
    prompt.computes(4, 4, at(90), at(140));
    assert_eq!(prompt.due(at(100)), due(80, Some(140)));
    let waits = Due {
        again: Some(at(152)),
        ..due(0, None)
    };
    assert_eq!(prompt.due(at(140)), waits);
    assert_eq!(prompt.due(at(152)), due(20, None));
}

#[test]
fn what_is_lost_is_not_written_and_what_was_written_is_not_written_again() {
    let mut prompt = LayerWise::new(12, 1, PushFrom::EveryChunk, FREE);
    prompt.hears(wanted(0, 3), at(0));
    prompt.computes(0, 4, at(0), at(10));
    assert_eq!(prompt.due(at(10)).bytes, 100);
    prompt.computes(4, 4, at(10), at(20));
    prompt.loses();
    assert_eq!(prompt.due(at(20)).bytes, 0);
    prompt.computes(0, 8, at(30), at(40));
    assert_eq!(prompt.due(at(40)).bytes, 100);
    prompt.computes(8, 4, at(40), at(50));
    assert_eq!(prompt.due(at(50)).bytes, 100);
    // Lost before the blocks were known: nothing is there to be written.
    let mut prompt = LayerWise::new(8, 1, PushFrom::EveryChunk, FREE);
    prompt.computes(0, 4, at(0), at(10));
    prompt.loses();
    prompt.hears(wanted(0, 2), at(20));
    assert_eq!(prompt.due(at(20)).bytes, 0);
}
