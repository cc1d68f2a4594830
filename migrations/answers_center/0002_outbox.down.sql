DROP TRIGGER note_updated ON answers.answer;
DROP TRIGGER note_inserted ON answers.answer;
DROP FUNCTION answers.note_answers();
DROP TABLE answers.answer_outbox;
