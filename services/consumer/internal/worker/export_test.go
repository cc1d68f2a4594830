package worker

// OnHashed has f called once contents were hashed and before they are scanned.
func (w *Worker) OnHashed(f func()) { w.hashed = f }
