//! A study as a Jupyter notebook (nbformat 4.5) and, with the same content, as one HTML page.
//!
//! Each code cell shows the command that made its figures; it was not run by a kernel, so it has no execution count.
//! The bytes depend on the content alone.

use serde_json::{Value, json};

use super::escape::escape;
use super::html::document;
use super::markdown;
use super::plot::Plot;
use super::table::Table;

/// What stands in a code cell whose output no command of its own made.
const NO_COMMAND: &str = "# from the command above";

/// A study in cells.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Notebook {
    /// Its title, the heading of the first cell.
    pub title: String,
    /// The cells after the title.
    pub cells: Vec<NotebookCell>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum NotebookCell {
    /// Words, in the small Markdown of [`markdown::html`].
    Markdown(String),
    /// A shell command and what it gave.
    Command {
        /// The command line, without the `!` that a notebook puts in front.
        command: String,
        /// What it gave, in order.
        outputs: Vec<Output>,
    },
}

/// What a command gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Words as a terminal shows them.
    Text(String),
    /// Figures.
    Table(Table),
    /// A drawing.
    Figure(Plot),
}

impl Notebook {
    /// A notebook with its title alone.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            cells: Vec::new(),
        }
    }

    /// Adds words.
    pub fn markdown(&mut self, text: impl Into<String>) -> &mut Self {
        self.cells.push(NotebookCell::Markdown(text.into()));
        self
    }

    /// Adds a command; tables, figures and text that follow are its outputs.
    pub fn command(&mut self, command: impl Into<String>) -> &mut Self {
        self.cells.push(NotebookCell::Command {
            command: command.into(),
            outputs: Vec::new(),
        });
        self
    }

    /// Adds a table to the command before it.
    pub fn table(&mut self, table: Table) -> &mut Self {
        self.output(Output::Table(table))
    }

    /// Adds a figure to the command before it.
    pub fn figure(&mut self, plot: Plot) -> &mut Self {
        self.output(Output::Figure(plot))
    }

    /// Adds words as a terminal shows them to the command before them.
    pub fn text(&mut self, text: impl Into<String>) -> &mut Self {
        self.output(Output::Text(text.into()))
    }

    /// After words, an output gets a cell of its own.
    fn output(&mut self, output: Output) -> &mut Self {
        match self.cells.last_mut() {
            Some(NotebookCell::Command { outputs, .. }) => outputs.push(output),
            _ => self.cells.push(NotebookCell::Command {
                command: String::new(),
                outputs: vec![output],
            }),
        }
        self
    }

    /// The notebook as the JSON text of an `.ipynb` file.
    pub fn to_ipynb(&self) -> String {
        let title = NotebookCell::Markdown(format!("# {}", one_line(&self.title)));
        let cells: Vec<Value> = std::iter::once(&title)
            .chain(&self.cells)
            .enumerate()
            .map(|(i, cell)| cell.json(&format!("cell-{:04}", i + 1)))
            .collect();
        let notebook = json!({
            "cells": cells,
            "metadata": {
                "title": self.title,
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
                "kneeboard": {"version": env!("CARGO_PKG_VERSION")},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        });
        // Notebooks are indented by one space, as Jupyter writes them.
        let mut bytes = Vec::new();
        let indented = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut writer = serde_json::Serializer::with_formatter(&mut bytes, indented);
        match serde::Serialize::serialize(&notebook, &mut writer) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned() + "\n",
            // A tree of JSON values in memory has nothing that could fail; compact it would be the same document.
            Err(_) => notebook.to_string() + "\n",
        }
    }

    /// The same content as one HTML page that needs nothing from outside.
    pub fn to_html(&self) -> String {
        let mut body = format!("<h1>{}</h1>\n", escape(&self.title));
        body.extend(self.cells.iter().map(NotebookCell::html));
        body += &format!("<footer>kneeboard {}</footer>\n", env!("CARGO_PKG_VERSION"));
        document(&self.title, &body)
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text as notebooks hold it: its lines, each with its end.
fn lines(text: &str) -> Value {
    text.split_inclusive('\n').map(Value::from).collect()
}

impl NotebookCell {
    fn json(&self, id: &str) -> Value {
        match self {
            Self::Markdown(text) => json!({
                "cell_type": "markdown",
                "id": id,
                "metadata": {},
                "source": lines(&markdown::safe(text)),
            }),
            Self::Command { command, outputs } => json!({
                "cell_type": "code",
                "execution_count": null,
                "id": id,
                "metadata": {},
                "outputs": outputs.iter().map(Output::json).collect::<Vec<_>>(),
                "source": lines(&source(command)),
            }),
        }
    }

    fn html(&self) -> String {
        match self {
            Self::Markdown(text) => markdown::html(text),
            Self::Command { command, outputs } => {
                let shown = if command.is_empty() {
                    String::new()
                } else {
                    format!(
                        "<pre class=\"command\"><code>$ {}</code></pre>\n",
                        escape(command)
                    )
                };
                outputs.iter().map(Output::html).fold(shown, |all, o| all + &o)
            }
        }
    }
}

/// A command as a code cell: one line for the shell, or a cell that is all shell.
fn source(command: &str) -> String {
    if command.is_empty() {
        NO_COMMAND.into()
    } else if command.contains('\n') {
        format!("%%sh\n{command}")
    } else {
        format!("!{command}")
    }
}

impl Output {
    fn json(&self) -> Value {
        let data = match self {
            Self::Text(text) => {
                return json!({"name": "stdout", "output_type": "stream", "text": lines(text)});
            }
            Self::Table(table) => json!({
                "text/html": lines(&table.html()),
                "text/plain": lines(&table.terminal(None)),
            }),
            Self::Figure(plot) => json!({
                "image/svg+xml": lines(&on_paper(&plot.svg())),
                "text/plain": lines(&plot.title),
            }),
        };
        json!({"data": data, "metadata": {}, "output_type": "display_data"})
    }

    fn html(&self) -> String {
        match self {
            Self::Text(text) => format!("<pre>{}</pre>\n", escape(text)),
            Self::Table(table) => table.html(),
            Self::Figure(plot) => format!("<figure>\n{}</figure>\n", plot.svg()),
        }
    }
}

/// A notebook's viewer may be light or dark and does not say which: the drawing brings its own ground.
fn on_paper(svg: &str) -> String {
    svg.replacen("<svg ", "<svg style=\"color:#222;background:#fff\" ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::{Axis, Mark, Series};
    use crate::report::{Cell, Column};

    const EVIL: &str = "<script>alert('x' & \"y\")</script>";

    fn study(title: &str) -> Notebook {
        let mut table = Table::new(title, vec![Column::plain(title), Column::with_unit("TTFT", "s")]);
        table.push(vec![title.into(), Cell::Number(0.25)]);
        let plot = Plot {
            title: title.into(),
            x: Axis::linear("time", "s"),
            y: Axis::linear("running", "requests"),
            series: vec![Series {
                name: title.into(),
                mark: Mark::Stairs,
                points: vec![(0.0, 1.0), (1.0, 3.0)],
            }],
            guides: Vec::new(),
        };
        let mut notebook = Notebook::new(title);
        notebook
            .markdown(format!("## Why\n\n{title}, `a < b`"))
            .command("kneeboard simulate s.yaml -o out")
            .text(title)
            .table(table.clone())
            .figure(plot)
            .markdown("And so:")
            .table(table);
        notebook
    }

    /// What the schema of nbformat 4.5 asks for.
    fn check(notebook: &Value) {
        let text_of = |v: &Value| {
            let lines = v.as_array().unwrap();
            for line in lines.iter().rev().skip(1) {
                let line = line.as_str().unwrap();
                assert!(
                    line.ends_with('\n') && line.matches('\n').count() == 1,
                    "{line:?}"
                );
            }
        };
        assert_eq!(
            (notebook["nbformat"].as_u64(), notebook["nbformat_minor"].as_u64()),
            (Some(4), Some(5))
        );
        assert!(notebook["metadata"]["kernelspec"]["name"].is_string());
        assert!(notebook["metadata"]["language_info"]["name"].is_string());
        let mut ids = std::collections::BTreeSet::new();
        for cell in notebook["cells"].as_array().unwrap() {
            let keys: Vec<&str> = cell.as_object().unwrap().keys().map(String::as_str).collect();
            let id = cell["id"].as_str().unwrap();
            assert!(
                id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && (1..=64).contains(&id.len())
            );
            assert!(ids.insert(id.to_owned()), "{id} twice");
            assert!(cell["metadata"].is_object());
            text_of(&cell["source"]);
            if cell["cell_type"] == "markdown" {
                assert_eq!(keys, ["cell_type", "id", "metadata", "source"]);
                continue;
            }
            assert_eq!(
                keys,
                [
                    "cell_type",
                    "execution_count",
                    "id",
                    "metadata",
                    "outputs",
                    "source"
                ]
            );
            for output in cell["outputs"].as_array().unwrap() {
                if output["output_type"] == "stream" {
                    assert_eq!(output["name"], "stdout");
                    text_of(&output["text"]);
                } else {
                    assert_eq!(output["output_type"], "display_data");
                    assert!(output["metadata"].is_object());
                    output["data"].as_object().unwrap().values().for_each(text_of);
                }
            }
        }
    }

    #[test]
    fn it_is_a_notebook_of_format_4_5() {
        let text = study("A & B").to_ipynb();
        let notebook: Value = serde_json::from_str(&text).unwrap();
        check(&notebook);
        let kinds: Vec<&str> = notebook["cells"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["cell_type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["markdown", "markdown", "code", "markdown", "code"]);
        let outputs = notebook["cells"][2]["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), 3);
        assert!(
            outputs[2]["data"]["image/svg+xml"][0]
                .as_str()
                .unwrap()
                .starts_with("<svg ")
        );
        assert_eq!(
            notebook["cells"][2]["source"][0],
            "!kneeboard simulate s.yaml -o out"
        );
        assert_eq!(notebook["cells"][4]["source"][0], NO_COMMAND);
        assert_eq!(text, study("A & B").to_ipynb());
    }

    #[test]
    fn a_small_one_to_the_byte() {
        let mut notebook = Notebook::new("T");
        notebook
            .markdown("one\ntwo")
            .command("kneeboard --version")
            .text("kneeboard\n");
        let want = format!(
            r##"{{
 "cells": [
  {{
   "cell_type": "markdown",
   "id": "cell-0001",
   "metadata": {{}},
   "source": [
    "# T"
   ]
  }},
  {{
   "cell_type": "markdown",
   "id": "cell-0002",
   "metadata": {{}},
   "source": [
    "one\n",
    "two"
   ]
  }},
  {{
   "cell_type": "code",
   "execution_count": null,
   "id": "cell-0003",
   "metadata": {{}},
   "outputs": [
    {{
     "name": "stdout",
     "output_type": "stream",
     "text": [
      "kneeboard\n"
     ]
    }}
   ],
   "source": [
    "!kneeboard --version"
   ]
  }}
 ],
 "metadata": {{
  "title": "T",
  "kernelspec": {{
   "display_name": "Python 3",
   "language": "python",
   "name": "python3"
  }},
  "language_info": {{
   "name": "python",
   "file_extension": ".py",
   "mimetype": "text/x-python"
  }},
  "kneeboard": {{
   "version": "{}"
  }}
 }},
 "nbformat": 4,
 "nbformat_minor": 5
}}
"##,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(notebook.to_ipynb(), want);
    }

    #[test]
    fn nothing_that_was_written_becomes_a_tag() {
        let notebook = study(EVIL);
        let html = notebook.to_html();
        assert!(!html.contains("<script"), "{html}");
        assert!(
            html.contains("<code>a &lt; b</code>") && html.contains("<svg "),
            "{html}"
        );
        let parsed: Value = serde_json::from_str(&notebook.to_ipynb()).unwrap();
        check(&parsed);
        for cell in parsed["cells"].as_array().unwrap() {
            for output in cell["outputs"].as_array().into_iter().flatten() {
                for kind in ["text/html", "image/svg+xml"] {
                    assert!(!output["data"][kind].to_string().contains("<script"));
                }
            }
            if cell["cell_type"] == "markdown" {
                assert!(!cell["source"].to_string().contains("<script"));
            }
        }
        // The page's rules need nothing from outside.
        assert!(!html.contains("src=") && !html.contains("@import"));
    }
}
