use super::*;

fn wide(columns: usize) -> Table {
    let mut all = vec![Column::plain("configuration")];
    all.extend((0..columns).map(|i| Column::with_unit(format!("measured thing {i}"), "requests/s")));
    let mut table = Table::new("T", all).with_keys(1);
    for row in 0..3_u32 {
        let mut cells: Vec<Cell> = vec![format!("groups={row}").into()];
        cells.extend((0..columns).map(|i| Cell::Number(f64::from(row) * 1_234.5 + i as f64)));
        table.push(cells);
    }
    table
}

/// Words that appear on some line, whole.
fn has_whole_words(text: &str, words: &str) -> bool {
    words
        .split(' ')
        .all(|word| text.split_whitespace().any(|found| found == word))
}

#[test]
fn a_wide_table_is_cut_in_parts_and_no_word_is() {
    for (width, parts) in [(80, 3), (120, 2), (400, 1)] {
        let text = wide(12).terminal(Some(width));
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(width), "{width}: {line}");
        }
        assert_eq!(text.matches("configuration").count(), parts, "{width}:\n{text}");
        assert!(
            has_whole_words(&text, "measured thing 11 (requests/s) groups=2 2,469"),
            "{text}"
        );
    }
}

#[test]
fn columns_that_say_nothing_are_left_out_and_constants_are_said_once() {
    let columns = ["key", "empty", "blank", "same", "varies"].map(Column::plain);
    let mut table = Table::new("", columns.to_vec()).with_keys(1);
    for n in [1_u64, 2] {
        table.push(vec![
            "k".into(),
            Cell::Absent,
            "".into(),
            Cell::Share(1.0),
            n.into(),
        ]);
    }
    let shown = table.condensed();
    let headings: Vec<String> = shown.columns.iter().map(Column::heading).collect();
    assert_eq!(
        headings,
        ["key", "varies"],
        "the key is kept though it is the same"
    );
    assert_eq!(
        shown.lead.as_deref(),
        Some("The same in all rows: same: 100.00 %.")
    );
    assert!(shown.terminal(None).starts_with("The same in all rows"));
    assert!(shown.html().contains("The same in all rows"));
    assert!(
        table.csv().starts_with("key,empty,blank,same,varies\n"),
        "files keep them"
    );
}

#[test]
fn a_single_row_keeps_its_figures_and_stands_upright() {
    let columns = vec![
        Column::plain("a"),
        Column::with_unit("b", "s"),
        Column::plain("c"),
    ];
    let mut table = Table::new("T", columns);
    table.push(vec!["x".into(), 2.0.into(), Cell::Absent]);
    let upright = table.condensed().upright();
    assert_eq!(upright.rows.len(), 2, "the empty one is gone: {upright:?}");
    assert_eq!(
        upright.rows[1],
        [Cell::from("b"), Cell::Number(2.0), Cell::from("s")]
    );
    assert_eq!(wide(2).upright(), wide(2));
}
