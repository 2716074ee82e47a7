"""From what is handed in to grades that a submission cannot forge.

A submission's way from file to page:
1. `worklist.list_work` takes the files that are new or changed.
2. `sandbox.Lane` starts a sandbox for one of them. `child.serve` runs in it, and forks a process for each question.
3. `submission.read_submission` reads the file; `asking.parse_in_sandbox` has its cells parsed, and `answer_to` finds those that
   a question rests on.
4. `asking.ask` sends these cells, then the inputs of one case after the other. What comes back is values: an `Outcome`.
5. `judge.judge_answer` (in `course_utils/grading`) compares them with the expected values: a `Verdict`.
6. `grade.SubmissionGrader` does so with all public cases, then with the hidden ones, and fills in a `record.Grade`.
7. `results.Results` writes the grade as JSON (a `record.Record`), the student's page, and the class's tables and summary.

What a submission must not be able to do, and what keeps it from that, is described in docs/instructors.md.
"""
