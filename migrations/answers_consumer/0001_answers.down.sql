DROP TABLE hall.answer_projection;
DROP SCHEMA hall;
