DROP TABLE answers.answer, answers.form;
DROP SCHEMA answers;
