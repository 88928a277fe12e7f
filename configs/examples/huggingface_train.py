"""Hugging Face's Trainer as a job that can be preempted: one callback."""
import os, sys, time
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainerCallback, TrainingArguments)
from datasets import load_dataset
import aloft_job as aloft


class Aloft(TrainerCallback):
    """Saves when it is due, reports, and stops when the slice is wanted back."""
    began = 0.0

    def on_step_end(self, args, state, control, **_):
        if aloft.due():
            self.began, control.should_save = time.monotonic(), True
        control.should_training_stop |= aloft.stopping()

    def on_save(self, args, state, control, **_):
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        aloft.saved(path, state.global_step, state.max_steps, time.monotonic() - self.began)

    def on_log(self, args, state, control, logs=None, **_):
        aloft.report(step=state.global_step, total=state.max_steps, loss=(logs or {}).get("loss", 0))


def main(name, file, steps):
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    data = load_dataset("text", data_files=file)["train"]
    data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256), remove_columns=["text"])
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(name), train_dataset=data, callbacks=[Aloft()],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        # The callback alone decides when to save; the server keeps the newest three.
        args=TrainingArguments(output_dir=aloft.checkpoints, max_steps=steps, save_strategy="no", report_to=[]))
    trainer.train(resume_from_checkpoint=aloft.resume_from or None)
    if aloft.stopping() and trainer.state.global_step < steps:
        aloft.requeue()
    trainer.save_model(os.environ.get("ALOFT_OUTPUT_DIR", "model"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
