//! A page as a Jupyter notebook (nbformat 4.5): words as Markdown, every table and plot as a cell that shows its file,
//! already rendered.

use std::path::Path;

use serde_json::{Value, json};

use super::html::{Block, Page};
use super::plot::{self, Plot};
use super::table::Table;
use crate::input::write_atomic;

/// A notebook and the files that its cells show.
#[derive(Debug, Clone, PartialEq)]
pub struct Notebook {
    /// The document.
    pub ipynb: String,
    /// Plots by the name of their files under `plots/`.
    pub plots: Vec<(String, Plot)>,
    /// Tables by the name of their files under `tables/`.
    pub tables: Vec<(String, Table)>,
}

impl Notebook {
    /// The notebook of a page that `command` made.
    pub fn of(page: &Page, command: &str) -> Self {
        let mut cells = Cells::default();
        let mut head = format!("# {}\n", markdown(&page.title));
        if !page.question.is_empty() {
            head += &format!("\n{}\n", markdown(&page.question));
        }
        for (name, value) in &page.context {
            head += &format!("\n* **{}**: {}", markdown(name), markdown(value));
        }
        cells.markdown(&head);
        cells.markdown("Everything below is written by one command. The cells show its files.");
        cells.shell(command);
        for section in &page.sections {
            cells.markdown(&format!("## {}", markdown(&section.heading)));
            for block in &section.blocks {
                cells.block(block);
            }
        }
        if !page.limitations.is_empty() {
            let lines = page.limitations.iter().map(|l| format!("* {}\n", markdown(l)));
            cells.markdown(&format!("## Limitations\n\n{}", lines.collect::<String>()));
        }
        cells.markdown(&markdown(&page.footer));
        let document = json!({
            "cells": cells.cells,
            "metadata": {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        });
        Self {
            ipynb: format!("{document:#}\n"),
            plots: cells.plots,
            tables: cells.tables,
        }
    }

    /// Writes `notebook.ipynb` and the files that it shows.
    ///
    /// # Errors
    /// Any I/O error.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        for (name, plot) in &self.plots {
            plot::write(&folder.join("plots"), name, plot)?;
        }
        for (name, table) in &self.tables {
            let path = folder.join("tables").join(format!("{name}.csv"));
            write_atomic(&path, |w| w.write_all(table.csv().as_bytes()))?;
        }
        write_atomic(&folder.join("notebook.ipynb"), |w| {
            w.write_all(self.ipynb.as_bytes())
        })
    }
}

#[derive(Default)]
struct Cells {
    cells: Vec<Value>,
    executed: u32,
    plots: Vec<(String, Plot)>,
    tables: Vec<(String, Table)>,
}

impl Cells {
    fn id(&self) -> String {
        format!("cell-{:03}", self.cells.len() + 1)
    }

    fn markdown(&mut self, source: &str) {
        let cell = json!({"cell_type": "markdown", "id": self.id(), "metadata": {}, "source": lines(source)});
        self.cells.push(cell);
    }

    fn code(&mut self, source: &str, data: Option<Value>) {
        self.executed += 1;
        let outputs: Vec<Value> = data
            .map(|data| {
                json!({
                    "data": data,
                    "execution_count": self.executed,
                    "metadata": {},
                    "output_type": "execute_result",
                })
            })
            .into_iter()
            .collect();
        let cell = json!({
            "cell_type": "code",
            "execution_count": self.executed,
            "id": self.id(),
            "metadata": {},
            "outputs": outputs,
            "source": lines(source),
        });
        self.cells.push(cell);
    }

    fn shell(&mut self, command: &str) {
        self.code(
            &format!("# In a shell, from the root of the repository:\n# {command}"),
            None,
        );
    }

    fn block(&mut self, block: &Block) {
        match block {
            Block::Text(text) => self.markdown(&markdown(text)),
            Block::Table(table) => {
                let name = file_name(self.tables.len() + 1, &table.title);
                let source = format!("import pandas\npandas.read_csv(\"tables/{name}.csv\")");
                let html = table.html();
                let plain = table.terminal(None);
                self.code(
                    &source,
                    Some(json!({"text/html": lines(&html), "text/plain": lines(&plain)})),
                );
                self.tables.push((name, table.clone()));
            }
            Block::Plot(plot) => {
                let name = file_name(self.plots.len() + 1, &plot.title);
                let source = format!("from IPython.display import SVG\nSVG(\"plots/{name}.svg\")");
                let data =
                    json!({"image/svg+xml": lines(&plot.svg_file()), "text/plain": lines(&plot.title)});
                self.code(&source, Some(data));
                self.plots.push((name, plot.clone()));
            }
        }
    }
}

/// Lines as nbformat keeps them: each with its line end.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// Words that Markdown prints as they are.
fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '\\' | '*' | '_' | '`' | '#' | '[' | ']' | '$' | '|' | '~' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

/// A file name from a number and a title: short, and of plain letters alone.
fn file_name(number: usize, title: &str) -> String {
    let words: Vec<String> = title
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .take(5)
        .map(str::to_ascii_lowercase)
        .collect();
    let mut name = format!("{number:02}-{}", words.join("-"));
    name.truncate(48);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::Goodput;
    use crate::report::html::Section;
    use crate::report::table::Column;

    fn page() -> Page {
        let mut table = Table::new(
            "A *table* <b>",
            vec![Column::plain("a_b"), Column::with_unit("t", "s")],
        );
        table.push(vec!["<script>".into(), 1.5.into()]);
        Page {
            title: "Title_1 <script>".into(),
            question: "why?".into(),
            context: vec![("load".into(), "5 * 3".into())],
            sections: vec![Section {
                heading: "One".into(),
                blocks: vec![
                    Block::Text("results_ttft_s_mean costs $1 & more".into()),
                    Block::Table(table),
                    Block::Plot(Goodput::default().plot()),
                ],
            }],
            limitations: vec!["thin".into()],
            footer: "kneeboard".into(),
        }
    }

    /// What nbformat 4.5 asks of a document: see its schema.
    #[test]
    fn every_cell_has_what_nbformat_asks_for() {
        let notebook = Notebook::of(&page(), "kneeboard explain x.yaml -o DIR");
        let document: Value = serde_json::from_str(&notebook.ipynb).unwrap();
        assert_eq!(
            (&document["nbformat"], &document["nbformat_minor"]),
            (&4.into(), &5.into())
        );
        let cells = document["cells"].as_array().unwrap();
        let mut ids: Vec<&str> = cells.iter().map(|c| c["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), cells.len(), "ids are unique");
        for cell in cells {
            assert!(
                cell["metadata"].is_object() && cell["source"].is_array(),
                "{cell}"
            );
            match cell["cell_type"].as_str().unwrap() {
                "markdown" => assert!(cell.get("outputs").is_none()),
                "code" => assert!(cell["outputs"].is_array() && cell["execution_count"].is_u64()),
                other => panic!("{other}"),
            }
        }
        assert_eq!((notebook.plots.len(), notebook.tables.len()), (1, 1));
        assert_eq!(notebook.tables[0].0, "01-a-table-b");
    }

    #[test]
    fn words_are_shown_as_they_are_and_nothing_is_markup() {
        let notebook = Notebook::of(&page(), "kneeboard");
        let document: Value = serde_json::from_str(&notebook.ipynb).unwrap();
        for cell in document["cells"].as_array().unwrap() {
            let data = &cell["outputs"][0]["data"];
            for shown in [&data["text/html"], &data["image/svg+xml"]] {
                assert!(!shown.to_string().contains("<script"), "{shown}");
            }
            assert!(
                cell["cell_type"] == "code" || !cell["source"].to_string().contains('<'),
                "{cell}"
            );
        }
        assert!(
            notebook
                .ipynb
                .contains(r"results\\_ttft\\_s\\_mean costs \\$1 &amp; more")
        );
        assert_eq!(markdown("a*b_c"), r"a\*b\_c");
    }

    #[test]
    fn the_files_that_cells_show_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let notebook = Notebook::of(&page(), "kneeboard");
        notebook.write(dir.path()).unwrap();
        let shown = notebook.ipynb.matches("plots/").count() + notebook.ipynb.matches("tables/").count();
        assert_eq!(shown, 2);
        assert!(dir.path().join("tables/01-a-table-b.csv").is_file());
        assert!(
            dir.path()
                .join(format!("plots/{}.svg", notebook.plots[0].0))
                .is_file()
        );
    }
}
